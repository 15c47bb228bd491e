"""What the product says to people, made from codes and arguments. Pure."""
