"""The collectives, hung on one training framework per file."""
