"""What XLA prints and does, read without XLA: no compiler and no engine is loaded.

read/           text to modules, and modules to collectives
partitioner/    which branch XLA's own partitioner takes from one sharding to another
report/         what a program asks for, what is sent for it, and what it should have cost

What is read is text and not the protocol buffers that XLA writes too: text is what a log, a dump or a bug report holds,
it needs no matching jaxlib, and what is left of it when it is cut can still be read.
`read` says what was sent, `partitioner` what XLA's rules would send; neither knows the other, and `report` rests on
both.
"""
