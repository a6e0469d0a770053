"""What is asked of the player on the small site: families of tasks, how each is checked, and the way to do it.

A task that changes something is checked against the whole state of the site: it must be what the site would be after
the change asked for and nothing else. A task that asks something must leave the site as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from rllib_lmgame.envs.support.answers import same_answer
from rllib_lmgame.envs.synthetic.web_site.page import words
from rllib_lmgame.envs.synthetic.web_site.shop import QUANTITIES, SHIPPING, new_address
from rllib_lmgame.envs.synthetic.web_site.site import Site, copy_site
from rllib_lmgame.envs.synthetic.web_site.tracker import NOBODY

SHOP, FORUM, TRACKER, CMS = "Shop", "Forum", "Issue tracker", "Content management"


@dataclass(frozen=True)
class Stage:
    """One part of the way: a page to go to, and what to do there.

    Attributes:
        route: Names of the links that lead there from any page.
        path: The page.
        fills: What to type or choose, by name of the field.
        button: What to press; ``None`` if the page is only to be read.
        done: Whether the site already is as this part leaves it.
    """

    route: tuple[str, ...]
    path: str
    button: str | None = None
    fills: tuple[tuple[str, str], ...] = ()
    done: Callable[[Site], bool] | None = None


@dataclass
class Task:
    """A task on one site.

    Attributes:
        site: As it is at the beginning.
        intent: What is asked.
        stages: A way to do it.
        answer: What ``stop`` must say; ``None`` if anything may be said.
        change: What the task changes, done to a copy of the site; ``None`` if nothing.
    """

    site: Site
    intent: str
    stages: tuple[Stage, ...]
    answer: str | None = None
    change: Callable[[Site], object] | None = None

    @cached_property
    def expected(self) -> Site:
        """The site as it must be in the end."""
        expected = copy_site(self.site)
        if self.change is not None:
            self.change(expected)
        return expected

    def solved(self, site: Site, answer: str) -> bool:
        """Whether the player's site and answer are what was asked for."""
        return site == self.expected and (self.answer is None or same_answer(answer, self.answer))


Family = Callable[[Site, random.Random], Task]


def _read(site: Site, intent: str, answer: object, route: tuple[str, ...], path: str) -> Task:
    return Task(site, intent, (Stage(route, path),), answer=str(answer))


def _do(
    site: Site,
    intent: str,
    change: Callable[[Site], object],
    route: tuple[str, ...],
    path: str,
    button: str,
    *fills: tuple[str, str],
) -> Task:
    task = Task(site, intent, (), change=change)
    task.stages = (Stage(route, path, button, fills, lambda now: now == task.expected),)
    return task


def shop_price(site: Site, rng: random.Random) -> Task:
    """Look up a price."""
    product = rng.choice(site.shop.products)
    intent = f"What does '{product.name}' cost in the shop ({product.category})? Answer with the price."
    return _read(site, intent, product.price, (SHOP, product.category, product.name), f"/shop/product/{product.number}")


def shop_rating(site: Site, rng: random.Random) -> Task:
    """Look up a rating."""
    product = rng.choice(site.shop.products)
    intent = (
        f"How is '{product.name}' (category {product.category} of the shop) rated? Answer with the number of stars "
        "out of 5."
    )
    return _read(
        site, intent, product.rating, (SHOP, product.category, product.name), f"/shop/product/{product.number}"
    )


def shop_cheapest(site: Site, rng: random.Random) -> Task:
    """Find the cheapest product of a category."""
    category = rng.choice(words()["category"])
    product = min(site.shop.of(category), key=lambda product: float(product.price))
    return _read(
        site,
        f"Which product of the shop's category {category} is the cheapest?",
        product.name,
        (SHOP, category),
        f"/shop/category/{category}",
    )


def shop_order_status(site: Site, rng: random.Random) -> Task:
    """Look up an order."""
    order = rng.choice(site.shop.orders)
    return _read(
        site,
        f"What is the status of your order {order.number} in the shop?",
        order.status,
        (SHOP, "My orders"),
        "/shop/orders",
    )


def shop_cart(site: Site, rng: random.Random) -> Task:
    """Put a number of products into the cart, and no more."""
    product = rng.choice([product for product in site.shop.products if product.stock])
    quantity = rng.choice(QUANTITIES)
    return _do(
        site,
        f"Put {quantity} of '{product.name}' (category {product.category}) into the cart of the shop, without "
        "ordering.",
        lambda now: now.shop.add_to_cart(product.name, int(quantity)),
        (SHOP, product.category, product.name),
        f"/shop/product/{product.number}",
        "Add to cart",
        ("Quantity", quantity),
    )


def shop_remove(site: Site, rng: random.Random) -> Task:
    """Take one of three products out of the cart."""
    products = rng.sample(site.shop.products, 3)
    site.shop.cart = {product.name: rng.randint(1, 3) for product in products}
    name = rng.choice(products).name
    return _do(
        site,
        f"Take '{name}' out of the cart of the shop.",
        lambda now: now.shop.cart.pop(name),
        (SHOP, "My cart"),
        "/shop/cart",
        f"Remove {name}",
    )


def shop_wish(site: Site, rng: random.Random) -> Task:
    """Add to the wish list."""
    product = rng.choice([product for product in site.shop.products if product.name not in site.shop.wish_list])
    return _do(
        site,
        f"Add '{product.name}' (category {product.category}) to your wish list in the shop.",
        lambda now: now.shop.wish_list.append(product.name),
        (SHOP, product.category, product.name),
        f"/shop/product/{product.number}",
        "Add to wish list",
    )


def shop_order(site: Site, rng: random.Random) -> Task:
    """Buy: cart, checkout, address and shipping."""
    site.shop.cart.clear()
    product = rng.choice([product for product in site.shop.products if product.stock])
    quantity, address, shipping = rng.choice(QUANTITIES), new_address(rng), rng.choice(SHIPPING)

    def fill(now: Site) -> None:
        now.shop.add_to_cart(product.name, int(quantity))

    def order(now: Site) -> None:
        fill(now)
        now.shop.order(address, shipping)

    intent = (
        f"Order {quantity} of '{product.name}' (category {product.category}) in the shop, to '{address}' by "
        f"{shipping} shipping."
    )
    task = Task(site, intent, (), change=order)
    route = (SHOP, product.category, product.name)
    filled = lambda now: bool(now.shop.cart) or now == task.expected  # noqa: E731
    task.stages = (
        Stage(route, f"/shop/product/{product.number}", "Add to cart", (("Quantity", quantity),), filled),
        Stage(
            (SHOP, "My cart", "Proceed to checkout"),
            "/shop/checkout",
            "Place order",
            (("Address", address), ("Shipping", shipping)),
            lambda now: now == task.expected,
        ),
    )
    return task


def forum_author(site: Site, rng: random.Random) -> Task:
    """Find out who started a thread."""
    thread = rng.choice(site.forum.threads)
    intent = f"Who started the thread '{thread.title}' in the forum {thread.forum}?"
    return _read(site, intent, thread.author, (FORUM, thread.forum), f"/forum/{thread.forum}")


def forum_top(site: Site, rng: random.Random) -> Task:
    """Compare scores."""
    name = rng.choice(words()["forum"])
    thread = max(site.forum.of(name), key=lambda thread: thread.score)
    return _read(
        site,
        f"Which thread of the forum {name} has the highest score? Answer with its title.",
        thread.title,
        (FORUM, name),
        f"/forum/{name}",
    )


def forum_count(site: Site, rng: random.Random) -> Task:
    """Count comments."""
    thread = rng.choice(site.forum.threads)
    route, path = (FORUM, thread.forum, thread.title), f"/forum/{thread.forum}/{thread.number}"
    intent = f"How many comments does the thread '{thread.title}' in the forum {thread.forum} have?"
    return _read(site, intent, len(thread.comments), route, path)


def forum_vote(site: Site, rng: random.Random) -> Task:
    """Vote on a thread."""
    thread = rng.choice(site.forum.threads)
    way, vote = rng.choice((("Upvote", 1), ("Downvote", -1)))
    intent = f"{way} the thread '{thread.title}' in the forum {thread.forum}."
    route, path, place = (
        (FORUM, thread.forum, thread.title),
        f"/forum/{thread.forum}/{thread.number}",
        thread.number - 1,
    )
    return _do(site, intent, lambda now: now.forum.threads[place].cast(vote), route, path, way)


def forum_comment(site: Site, rng: random.Random) -> Task:
    """Comment on a thread."""
    thread, text = rng.choice(site.forum.threads), rng.choice(words()["new-text"])
    route, path, place = (
        (FORUM, thread.forum, thread.title),
        f"/forum/{thread.forum}/{thread.number}",
        thread.number - 1,
    )
    intent = f"Comment on the thread '{thread.title}' in the forum {thread.forum} with the text '{text}'"
    change = lambda now: now.forum.comment(now.forum.threads[place], text)  # noqa: E731
    return _do(site, intent, change, route, path, "Post comment", ("Comment", text))


def forum_thread(site: Site, rng: random.Random) -> Task:
    """Start a thread."""
    name, title, text = rng.choice(words()["forum"]), rng.choice(words()["new-title"]), rng.choice(words()["new-text"])
    intent = f"Start a thread in the forum {name} with the title '{title}' and the text '{text}'"
    change = lambda now: now.forum.start(name, title, text)  # noqa: E731
    return _do(
        site,
        intent,
        change,
        (FORUM, name, "New thread"),
        f"/forum/{name}/new",
        "Publish thread",
        ("Title", title),
        ("Text", text),
    )


def tracker_assignee(site: Site, rng: random.Random) -> Task:
    """Find out who is assigned to an issue, open or closed."""
    issue = rng.choice(site.tracker.issues)
    intent = (
        f"Who is assigned to the {_state(issue.is_open)} issue '{issue.title}' of the project {issue.project}? Answer "
        f"with the name, or '{NOBODY}'."
    )
    return _read(
        site,
        intent,
        issue.assignee,
        _to_issue(issue.project, issue.title, issue.is_open),
        f"/tracker/{issue.project}/{issue.number}",
    )


def tracker_count(site: Site, rng: random.Random) -> Task:
    """Count the open issues with a label."""
    project, label = rng.choice(words()["project"]), rng.choice(words()["label"])
    count = sum(issue.is_open and label in issue.labels for issue in site.tracker.of(project))
    intent = f"How many open issues of the project {project} have the label '{label}'?"
    return _read(site, intent, count, (TRACKER, project), f"/tracker/{project}")


def tracker_state(site: Site, rng: random.Random) -> Task:
    """Close or reopen an issue."""
    issue = rng.choice(site.tracker.issues)
    verb, place = "Close" if issue.is_open else "Reopen", issue.number - 1

    def change(now: Site) -> None:
        now.tracker.issues[place].is_open = not issue.is_open

    intent = f"{verb} the issue '{issue.title}' of the project {issue.project}."
    route = _to_issue(issue.project, issue.title, issue.is_open)
    return _do(site, intent, change, route, f"/tracker/{issue.project}/{issue.number}", f"{verb} issue")


def tracker_label(site: Site, rng: random.Random) -> Task:
    """Add a label to an issue."""
    issue = rng.choice(site.tracker.issues)
    label, place = rng.choice([label for label in words()["label"] if label not in issue.labels]), issue.number - 1
    intent = (
        f"Add the label '{label}' to the {_state(issue.is_open)} issue '{issue.title}' of the project {issue.project}."
    )
    route, path = _to_issue(issue.project, issue.title, issue.is_open), f"/tracker/{issue.project}/{issue.number}"
    return _do(
        site, intent, lambda now: now.tracker.issues[place].add_label(label), route, path, "Add label", ("Label", label)
    )


def tracker_assign(site: Site, rng: random.Random) -> Task:
    """Assign an issue."""
    issue = rng.choice(site.tracker.issues)
    name, place = rng.choice([name for name in words()["people"] if name != issue.assignee]), issue.number - 1

    def change(now: Site) -> None:
        now.tracker.issues[place].assignee = name

    intent = f"Assign the {_state(issue.is_open)} issue '{issue.title}' of the project {issue.project} to '{name}'."
    route, path = _to_issue(issue.project, issue.title, issue.is_open), f"/tracker/{issue.project}/{issue.number}"
    return _do(site, intent, change, route, path, "Assign", ("Assignee", name))


def tracker_create(site: Site, rng: random.Random) -> Task:
    """Create an issue."""
    project, title, text = (
        rng.choice(words()["project"]),
        rng.choice(words()["new-title"]),
        rng.choice(words()["new-text"]),
    )
    intent = f"Create an issue in the project {project} with the title '{title}' and the description '{text}'"
    change = lambda now: now.tracker.create(project, title, text)  # noqa: E731
    return _do(
        site,
        intent,
        change,
        (TRACKER, project, "New issue"),
        f"/tracker/{project}/new",
        "Create issue",
        ("Title", title),
        ("Description", text),
    )


def cms_drafts(site: Site, rng: random.Random) -> Task:
    """Count drafts."""
    count = sum(not entry.published for entry in site.cms.entries)
    return _read(site, "How many pages in the content management are drafts?", count, (CMS,), "/cms")


def cms_author(site: Site, rng: random.Random) -> Task:
    """Find out who edited a page last."""
    entry = rng.choice(site.cms.entries)
    return _read(
        site,
        f"Who edited the page '{entry.title}' of the content management last?",
        entry.author,
        (CMS, entry.title),
        f"/cms/{entry.number}",
    )


def cms_publish(site: Site, rng: random.Random) -> Task:
    """Publish or withdraw a page."""
    place = rng.randrange(len(site.cms.entries))
    entry = site.cms.entries[place]
    verb = "Unpublish" if entry.published else "Publish"

    def change(now: Site) -> None:
        now.cms.entries[place].published = not entry.published

    return _do(
        site,
        f"{verb} the page '{entry.title}' in the content management.",
        change,
        (CMS, entry.title),
        f"/cms/{entry.number}",
        verb,
    )


def cms_rename(site: Site, rng: random.Random) -> Task:
    """Change the title of a page and leave its content."""
    place, title = rng.randrange(len(site.cms.entries)), rng.choice(words()["new-title"])
    entry = site.cms.entries[place]

    def change(now: Site) -> None:
        now.cms.entries[place].title = title

    intent = f"Change the title of the page '{entry.title}' in the content management to '{title}', and nothing else."
    return _do(site, intent, change, (CMS, entry.title), f"/cms/{entry.number}", "Save changes", ("Title", title))


def cms_write(site: Site, rng: random.Random) -> Task:
    """Replace the content of a page and leave its title."""
    place, text = rng.randrange(len(site.cms.entries)), rng.choice(words()["new-text"])
    entry = site.cms.entries[place]

    def change(now: Site) -> None:
        now.cms.entries[place].body = text

    intent = f"Replace the content of the page '{entry.title}' in the content management by '{text}'"
    return _do(site, intent, change, (CMS, entry.title), f"/cms/{entry.number}", "Save changes", ("Content", text))


def cms_create(site: Site, rng: random.Random) -> Task:
    """Write a new page."""
    title, text = rng.choice(words()["new-title"]), rng.choice(words()["new-text"])
    intent = (
        f"Write a new page in the content management, as a draft, with the title '{title}' and the content '{text}'"
    )
    change = lambda now: now.cms.create(title, text)  # noqa: E731
    return _do(site, intent, change, (CMS, "New page"), "/cms/new", "Save draft", ("Title", title), ("Content", text))


def cms_delete(site: Site, rng: random.Random) -> Task:
    """Delete a page."""
    place = rng.randrange(len(site.cms.entries))
    entry = site.cms.entries[place]
    intent = f"Delete the page '{entry.title}' in the content management."
    return _do(
        site, intent, lambda now: now.cms.entries.pop(place), (CMS, entry.title), f"/cms/{entry.number}", "Delete page"
    )


def cms_site_title(site: Site, rng: random.Random) -> Task:
    """Change a setting."""
    title = rng.choice([title for title in words()["site-title"] if title != site.cms.site_title])

    def change(now: Site) -> None:
        now.cms.site_title = title

    intent = f"Set the site title in the settings of the content management to '{title}'."
    return _do(site, intent, change, (CMS, "Settings"), "/cms/settings", "Save settings", ("Site title", title))


def _state(is_open: bool) -> str:
    return "open" if is_open else "closed"


def _to_issue(project: str, title: str, is_open: bool) -> tuple[str, ...]:
    return (TRACKER, project, title) if is_open else (TRACKER, project, "Closed issues", title)


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        *(shop_price, shop_rating, shop_cheapest, shop_order_status, shop_cart, shop_remove, shop_wish, shop_order),
        *(forum_author, forum_top, forum_count, forum_vote, forum_comment, forum_thread),
        *(tracker_assignee, tracker_count, tracker_state, tracker_label, tracker_assign, tracker_create),
        *(cms_drafts, cms_author, cms_publish, cms_rename, cms_write, cms_create, cms_delete, cms_site_title),
    )
}
"""All families by name; the part before the underscore is the section."""
