"""What algorithms cost and what a model ran: profiles, explanations, coverage, and their tables."""
