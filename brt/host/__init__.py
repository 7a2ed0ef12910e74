"""The machine of a process: its terminal, the other processes, the folder of compiled programs."""
