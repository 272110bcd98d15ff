"""When it does not work: what a failure means, when to try again, the letter that says so, and the way back."""
