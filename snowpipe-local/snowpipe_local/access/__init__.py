"""Who may do what: users, roles, grants and warehouses of the local service."""
