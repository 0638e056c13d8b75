"""English into another language: ChainerMN's seq2seq, with the encoder and the decoder apart."""
