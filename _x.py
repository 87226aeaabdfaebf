import numpy as np, seer, time
from seer.cli import random_inputs
from seer.graph.reference import run
for name,o in [("mlp",{}),("resnet18",{"image":64}),("bert_base",{"layers":2,"seq_len":32,"hidden":128,"heads":4,"vocabulary":500}),("gpt2",{"layers":2,"sequence":16,"hidden":64,"heads":2,"vocabulary":99}),("mobilenet_v2",{"image":64}),("vit_base",{"layers":2,"hidden":96,"heads":2})]:
    m=seer.zoo.get(name,**o); f=random_inputs(m); ref=run(m,f)[0]
    for d in ("float32","float16","bfloat16"):
        c=seer.compile(m,dtype=d); out=c(**f)
        print(name,d,np.linalg.norm(out-ref)/np.linalg.norm(ref),c)
m=seer.zoo.get("mlp")
import os
os.environ["SEER_DEBUG"]="dag,sketch"
seer.compile(m,dtype="bfloat16")
