"""Message queues of ``common-messaging``."""
