"""Looking at what was played: episode logs as a page of a browser, one file to send, or text in a terminal."""
