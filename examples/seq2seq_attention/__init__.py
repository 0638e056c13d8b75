"""Numbers translated into words and back: an encoder and a decoder with attention, in buckets."""
