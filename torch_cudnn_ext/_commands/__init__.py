"""What the command line takes: its commands, their options, and what is wrong about arguments.

Nothing here imports PyTorch, so that ``--help`` and wrong arguments are answered at once. `cli`
holds what the commands do.
"""
