"""What is written about runs: figures, tables and the paper's claims."""
