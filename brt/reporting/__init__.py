"""From run folders to the paper's tables, figures and one page to read them on."""
