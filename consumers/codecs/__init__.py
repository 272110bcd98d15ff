"""Codecs: bytes from Kafka become typed values, and values become bytes; whatever cannot is refused by name."""
