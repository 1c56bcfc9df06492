"""Checkpoints on disk: read whatever their form, written anew as rules say, compared.

files.py        parts of files, by plain calls
safetensors.py  headers of `.safetensors` files
pickles.py      pickles that may ask for nothing but what is listed
dcp.py          torch's distributed checkpoints, without torch
stored.py       tensors as boxes in files, whatever form they were read from
opening.py      a path, opened
layouts.py      what is written: buffers of files, and of which boxes they consist
converting.py   the writing: streamed, whole or not at all, resumable
comparing.py    two checkpoints side by side
"""
