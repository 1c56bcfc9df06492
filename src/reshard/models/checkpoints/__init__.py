"""Checkpoints on disk: read whatever their form, written anew as rules say, compared.

files.py        parts of files, by plain calls
safetensors.py  headers of `.safetensors` files
pickles.py      pickles that may ask for nothing but what is listed
dcp.py, dcp_writing.py
                torch's distributed checkpoints, without torch
orbax.py, orbax_layout.py
                orbax's, through tensorstore
device_tiles.py our own: a file for every device, and an index
stored.py       tensors as boxes in files, whatever form they were read from
opening.py      a path, opened
layouts.py      what is written: files, and where in them which box of which tensor goes
copying.py      one tensor to all its places, slab by slab
converting.py   all of them: streamed, whole or not at all, resumable
costs.py        what that takes, told beforehand
comparing.py    two checkpoints side by side
"""
