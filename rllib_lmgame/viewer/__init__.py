"""Looking at what was played: episode logs as a page of a browser, or one file to send."""
