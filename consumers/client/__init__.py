"""The Kafka client: one thread that owns the consumer, a producer, and the ports that the worker sees of them."""
