"""Translation of numbers into words and back: encoder and decoder with attention, in buckets."""
