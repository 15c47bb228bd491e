"""Where sessions go: node, cluster and region. Pure."""
