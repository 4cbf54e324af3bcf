"""Tables, plots and explanations for people; the glossary; the paper's exhibits."""
