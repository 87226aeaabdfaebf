"""Models from elsewhere as seer graphs."""
