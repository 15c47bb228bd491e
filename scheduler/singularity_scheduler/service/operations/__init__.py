"""The operations of the REST API and the table that declares them."""
