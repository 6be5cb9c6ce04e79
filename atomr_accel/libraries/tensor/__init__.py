"""cuTENSOR: sums of products of arrays with any number of axes."""
