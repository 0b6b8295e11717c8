"""One reader per source of topology; each turns its source into a Reading and decides nothing else."""
