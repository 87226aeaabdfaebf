"""What to compute: the graph API, operators, passes, and the partition into subgraphs."""
