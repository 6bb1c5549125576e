"""NeMo RL: our reuse, drafters and tracking behind its interfaces."""
