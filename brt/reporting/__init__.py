"""Tables and figures of the papers, and one page, from run folders."""
