"""What a run's report is made of: sections of a page, from its records and from its mistakes."""
