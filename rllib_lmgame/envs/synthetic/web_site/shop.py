"""The shop: categories, products, cart, wish list, orders."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rllib_lmgame.envs.synthetic.web_site.page import Page, words

SHIPPING = ("standard", "express")
STATUSES = ("processing", "shipped", "delivered", "returned")
QUANTITIES = ("1", "2", "3", "4", "5")
FIRST_ORDER = 1001


@dataclass
class Product:
    """Something to buy; ``number`` is its place in the shop."""

    number: int
    name: str
    category: str
    price: str
    rating: str
    stock: int
    description: str


@dataclass
class Order:
    """A purchase; ``items`` gives quantities by product name."""

    number: int
    items: dict[str, int]
    address: str
    shipping: str
    status: str


@dataclass
class Shop:
    """State of the section."""

    products: list[Product]
    orders: list[Order]
    cart: dict[str, int] = field(default_factory=dict)
    wish_list: list[str] = field(default_factory=list)

    def of(self, category: str) -> list[Product]:
        """Products of a category."""
        return [product for product in self.products if product.category == category]

    def add_to_cart(self, name: str, quantity: int) -> None:
        """Put products into the cart."""
        self.cart[name] = self.cart.get(name, 0) + quantity

    def order(self, address: str, shipping: str) -> None:
        """Buy what is in the cart."""
        self.orders.append(Order(FIRST_ORDER + len(self.orders), dict(self.cart), address, shipping, STATUSES[0]))
        self.cart.clear()


def make_shop(rng: random.Random) -> Shop:
    """A shop of four categories with five products each, and a few orders of old."""
    lists = words()
    products: list[Product] = []
    for category in lists["category"]:
        prices = rng.sample(range(6, 120), 5)
        for name, price in zip(rng.sample(lists[f"product/{category}"], 5), prices, strict=True):
            text, rating = rng.choice(lists["product-text"]), f"{rng.randint(20, 50) / 10:.1f}"
            products.append(
                Product(
                    len(products) + 1,
                    name,
                    category,
                    f"{price}.{rng.choice(('00', '49', '95'))}",
                    rating,
                    rng.randint(0, 40),
                    text,
                )
            )
    orders = []
    for number in range(FIRST_ORDER, FIRST_ORDER + rng.randint(3, 5)):
        items = {product.name: rng.randint(1, 3) for product in rng.sample(products, rng.randint(1, 2))}
        orders.append(Order(number, items, new_address(rng), rng.choice(SHIPPING), rng.choice(STATUSES)))
    carted = {product.name: 1 for product in rng.sample(products, rng.randint(0, 1))}
    return Shop(products, orders, carted, [rng.choice(products).name])


def new_address(rng: random.Random) -> str:
    """A street and a number."""
    return f"{rng.randint(1, 99)} {rng.choice(words()['street'])}"


def show(shop: Shop, parts: Sequence[str], query: Mapping[str, str], page: Page) -> bool:
    """Fill in the page at ``parts``; false if there is none."""
    match list(parts):
        case []:
            _front(shop, page)
        case ["category", name] if shop.of(name):
            page.heading(name)
            _list(shop.of(name), page)
        case ["search"]:
            sought = query.get("q", "").casefold()
            page.heading("Search results")
            found = [product for product in shop.products if sought in product.name.casefold()]
            page.text(f"{len(found)} products found")
            _list(found, page)
        case ["product", number] if (
            number.isdecimal() and number.isascii() and 1 <= int(number[:6]) <= len(shop.products)
        ):
            _product(shop.products[int(number[:6]) - 1], page)
        case ["cart"]:
            _cart(shop, page)
        case ["checkout"] if shop.cart:
            _checkout(page)
        case ["orders"]:
            _orders(shop, page)
        case ["wishlist"]:
            page.heading("My wish list")
            _list([product for product in shop.products if product.name in shop.wish_list], page)
        case _:
            return False
    return True


def act(shop: Shop, parts: Sequence[str], fields: Mapping[str, str]) -> str | None:
    """Carry out what a form sends; returns the path that is shown then, or ``None`` if it makes no sense."""
    match list(parts):
        case ["product", number, verb] if (
            number.isdecimal() and number.isascii() and 1 <= int(number[:6]) <= len(shop.products)
        ):
            product = shop.products[int(number[:6]) - 1]
            if verb == "cart" and fields.get("quantity") in QUANTITIES and product.stock:
                shop.add_to_cart(product.name, int(fields["quantity"]))
                return "/shop/cart"
            if verb == "wishlist" and product.name not in shop.wish_list:
                shop.wish_list.append(product.name)
                return "/shop/wishlist"
        case ["cart", "remove"] if fields.get("name") in shop.cart:
            del shop.cart[fields["name"]]
            return "/shop/cart"
        case ["checkout"] if shop.cart and fields.get("address", "").strip() and fields.get("shipping") in SHIPPING:
            shop.order(fields["address"].strip(), fields["shipping"])
            return "/shop/orders"
    return None


def _front(shop: Shop, page: Page) -> None:
    page.heading("Shop")
    page.textbox(page.form("/shop/search", "get"), "q", "Search products")
    page.button(len(page.forms) - 1, "Search")
    for category in dict.fromkeys(product.category for product in shop.products):
        page.link(category, f"/shop/category/{category}")
    page.link("My cart", "/shop/cart")
    page.link("My wish list", "/shop/wishlist")
    page.link("My orders", "/shop/orders")


def _list(products: Sequence[Product], page: Page) -> None:
    for product in products:
        page.link(product.name, f"/shop/product/{product.number}")
        page.text(f"${product.price}")


def _product(product: Product, page: Page) -> None:
    page.heading(product.name)
    page.text(f"Price: ${product.price}")
    page.text(f"Rating: {product.rating} of 5")
    page.text(f"{product.stock} in stock" if product.stock else "Sold out")
    page.text(product.description)
    if product.stock:
        form = page.form(f"/shop/product/{product.number}/cart")
        page.choice(form, "quantity", "Quantity", QUANTITIES)
        page.button(form, "Add to cart")
    page.action("Add to wish list", f"/shop/product/{product.number}/wishlist")


def _cart(shop: Shop, page: Page) -> None:
    page.heading("My cart")
    for name, quantity in shop.cart.items():
        page.text(f"{quantity} x {name}")
        page.button(page.form("/shop/cart/remove", hidden=[("name", name)]), f"Remove {name}")
    if shop.cart:
        page.link("Proceed to checkout", "/shop/checkout")
    else:
        page.text("Your cart is empty.")


def _checkout(page: Page) -> None:
    page.heading("Checkout")
    form = page.form("/shop/checkout")
    page.textbox(form, "address", "Address")
    page.choice(form, "shipping", "Shipping", SHIPPING)
    page.button(form, "Place order")


def _orders(shop: Shop, page: Page) -> None:
    page.heading("My orders")
    for order in shop.orders:
        items = ", ".join(f"{quantity} x {name}" for name, quantity in order.items.items())
        page.text(f"Order {order.number}: {items}; to {order.address}; {order.shipping} shipping; {order.status}")
