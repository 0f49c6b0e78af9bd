"""From settings to a plan: the schema, its consistency, and the objects that it names."""
