"""DeepSearch: answer a question by searching a corpus, hop by hop."""
