"""A site of four sections: shop, forum, issue tracker and content management, and tasks on it."""
