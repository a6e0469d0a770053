"""WebShop: buy the product an instruction describes, in a shop of text pages."""
