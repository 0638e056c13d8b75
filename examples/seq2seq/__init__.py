"""Translation from English: ChainerMN's seq2seq, with encoder and decoder on different ranks."""
