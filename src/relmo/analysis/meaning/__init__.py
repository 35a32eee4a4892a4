"""What words mean where they stand: occurrences, senses, neighbours, probes."""
