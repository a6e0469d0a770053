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
from rllib_lmgame.envs.synthetic.web_site.cms import Entry
from rllib_lmgame.envs.synthetic.web_site.forum import Thread
from rllib_lmgame.envs.synthetic.web_site.page import words
from rllib_lmgame.envs.synthetic.web_site.shop import QUANTITIES, SHIPPING, Product, new_address
from rllib_lmgame.envs.synthetic.web_site.site import Site, copy_site
from rllib_lmgame.envs.synthetic.web_site.tracker import NOBODY, Issue

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
Place = tuple[tuple[str, ...], str]
"""Names of the links that lead to a page from any other, and the page's path."""


def _read(site: Site, intent: str, answer: object, place: Place) -> Task:
    return Task(site, intent, (Stage(*place),), answer=str(answer))


def _do(
    site: Site, intent: str, change: Callable[[Site], object], place: Place, button: str, *fills: tuple[str, str]
) -> Task:
    task = Task(site, intent, (), change=change)
    task.stages = (Stage(*place, button, fills, lambda now: now == task.expected),)
    return task


def _setting(of: Callable[[Site], object], name: str, value: object) -> Callable[[Site], object]:
    """The change that sets a field."""
    return lambda now: setattr(of(now), name, value)


def _of_product(product: Product) -> Place:
    return (SHOP, product.category, product.name), f"/shop/product/{product.number}"


def _of_thread(thread: Thread) -> Place:
    return (FORUM, thread.forum, thread.title), f"/forum/{thread.forum}/{thread.number}"


def _of_issue(issue: Issue) -> Place:
    closed = () if issue.is_open else ("Closed issues",)
    return (TRACKER, issue.project, *closed, issue.title), f"/tracker/{issue.project}/{issue.number}"


def _of_entry(entry: Entry) -> Place:
    return (CMS, entry.title), f"/cms/{entry.number}"


def shop_price(site: Site, rng: random.Random) -> Task:
    """Look up a price."""
    product = rng.choice(site.shop.products)
    intent = f"What does '{product.name}' cost in the shop ({product.category})? Answer with the price."
    return _read(site, intent, product.price, _of_product(product))


def shop_rating(site: Site, rng: random.Random) -> Task:
    """Look up a rating."""
    product = rng.choice(site.shop.products)
    asked = f"How is '{product.name}' (category {product.category} of the shop) rated?"
    return _read(site, f"{asked} Answer with the number of stars out of 5.", product.rating, _of_product(product))


def shop_cheapest(site: Site, rng: random.Random) -> Task:
    """Find the cheapest product of a category."""
    category = rng.choice(words()["category"])
    product = min(site.shop.of(category), key=lambda product: float(product.price))
    intent = f"Which product of the shop's category {category} is the cheapest?"
    return _read(site, intent, product.name, ((SHOP, category), f"/shop/category/{category}"))


def shop_order_status(site: Site, rng: random.Random) -> Task:
    """Look up an order."""
    order = rng.choice(site.shop.orders)
    intent = f"What is the status of your order {order.number} in the shop?"
    return _read(site, intent, order.status, ((SHOP, "My orders"), "/shop/orders"))


def shop_cart(site: Site, rng: random.Random) -> Task:
    """Put a number of products into the cart, and no more."""
    product = rng.choice([product for product in site.shop.products if product.stock])
    quantity, named = rng.choice(QUANTITIES), f"'{product.name}' (category {product.category})"
    intent = f"Put {quantity} of {named} into the cart of the shop, without ordering."
    change = lambda now: now.shop.add_to_cart(product.name, int(quantity))  # noqa: E731
    return _do(site, intent, change, _of_product(product), "Add to cart", ("Quantity", quantity))


def shop_remove(site: Site, rng: random.Random) -> Task:
    """Take one of three products out of the cart."""
    products = rng.sample(site.shop.products, 3)
    site.shop.cart = {product.name: rng.randint(1, 3) for product in products}
    name = rng.choice(products).name
    intent, place = f"Take '{name}' out of the cart of the shop.", ((SHOP, "My cart"), "/shop/cart")
    return _do(site, intent, lambda now: now.shop.cart.pop(name), place, f"Remove {name}")


def shop_wish(site: Site, rng: random.Random) -> Task:
    """Add to the wish list."""
    product = rng.choice([product for product in site.shop.products if product.name not in site.shop.wish_list])
    intent = f"Add '{product.name}' (category {product.category}) to your wish list in the shop."
    change = lambda now: now.shop.wish_list.append(product.name)  # noqa: E731
    return _do(site, intent, change, _of_product(product), "Add to wish list")


def shop_order(site: Site, rng: random.Random) -> Task:
    """Buy: cart, checkout, address and shipping."""
    site.shop.cart.clear()
    product = rng.choice([product for product in site.shop.products if product.stock])
    quantity, address, shipping = rng.choice(QUANTITIES), new_address(rng), rng.choice(SHIPPING)

    def order(now: Site) -> None:
        now.shop.add_to_cart(product.name, int(quantity))
        now.shop.order(address, shipping)

    named = f"{quantity} of '{product.name}' (category {product.category})"
    task = Task(site, f"Order {named} in the shop, to '{address}' by {shipping} shipping.", (), change=order)
    done = lambda now: now == task.expected  # noqa: E731
    filled = lambda now: bool(now.shop.cart) or done(now)  # noqa: E731
    checkout = (SHOP, "My cart", "Proceed to checkout")
    task.stages = (
        Stage(*_of_product(product), "Add to cart", (("Quantity", quantity),), filled),
        Stage(checkout, "/shop/checkout", "Place order", (("Address", address), ("Shipping", shipping)), done),
    )
    return task


def forum_author(site: Site, rng: random.Random) -> Task:
    """Find out who started a thread."""
    thread = rng.choice(site.forum.threads)
    intent = f"Who started the thread '{thread.title}' in the forum {thread.forum}?"
    return _read(site, intent, thread.author, ((FORUM, thread.forum), f"/forum/{thread.forum}"))


def forum_top(site: Site, rng: random.Random) -> Task:
    """Compare scores."""
    name = rng.choice(words()["forum"])
    thread = max(site.forum.of(name), key=lambda thread: thread.score)
    intent = f"Which thread of the forum {name} has the highest score? Answer with its title."
    return _read(site, intent, thread.title, ((FORUM, name), f"/forum/{name}"))


def forum_count(site: Site, rng: random.Random) -> Task:
    """Count comments."""
    thread = rng.choice(site.forum.threads)
    intent = f"How many comments does the thread '{thread.title}' in the forum {thread.forum} have?"
    return _read(site, intent, len(thread.comments), _of_thread(thread))


def forum_vote(site: Site, rng: random.Random) -> Task:
    """Vote on a thread."""
    thread = rng.choice(site.forum.threads)
    way, vote = rng.choice((("Upvote", 1), ("Downvote", -1)))
    intent, place = f"{way} the thread '{thread.title}' in the forum {thread.forum}.", thread.number - 1
    return _do(site, intent, lambda now: now.forum.threads[place].cast(vote), _of_thread(thread), way)


def forum_comment(site: Site, rng: random.Random) -> Task:
    """Comment on a thread."""
    thread, text = rng.choice(site.forum.threads), rng.choice(words()["new-text"])
    intent = f"Comment on the thread '{thread.title}' in the forum {thread.forum} with the text '{text}'"
    change = lambda now: now.forum.comment(now.forum.threads[thread.number - 1], text)  # noqa: E731
    return _do(site, intent, change, _of_thread(thread), "Post comment", ("Comment", text))


def forum_thread(site: Site, rng: random.Random) -> Task:
    """Start a thread."""
    name, title, text = (rng.choice(words()[what]) for what in ("forum", "new-title", "new-text"))
    intent = f"Start a thread in the forum {name} with the title '{title}' and the text '{text}'"
    change = lambda now: now.forum.start(name, title, text)  # noqa: E731
    place = ((FORUM, name, "New thread"), f"/forum/{name}/new")
    return _do(site, intent, change, place, "Publish thread", ("Title", title), ("Text", text))


def tracker_assignee(site: Site, rng: random.Random) -> Task:
    """Find out who is assigned to an issue, open or closed."""
    issue = rng.choice(site.tracker.issues)
    asked = f"Who is assigned to the {_state(issue)} issue '{issue.title}' of the project {issue.project}?"
    return _read(site, f"{asked} Answer with the name, or '{NOBODY}'.", issue.assignee, _of_issue(issue))


def tracker_count(site: Site, rng: random.Random) -> Task:
    """Count the open issues with a label."""
    project, label = rng.choice(words()["project"]), rng.choice(words()["label"])
    count = sum(issue.is_open and label in issue.labels for issue in site.tracker.of(project))
    intent = f"How many open issues of the project {project} have the label '{label}'?"
    return _read(site, intent, count, ((TRACKER, project), f"/tracker/{project}"))


def tracker_state(site: Site, rng: random.Random) -> Task:
    """Close or reopen an issue."""
    issue = rng.choice(site.tracker.issues)
    verb = "Close" if issue.is_open else "Reopen"
    change = _setting(lambda now: now.tracker.issues[issue.number - 1], "is_open", not issue.is_open)
    intent = f"{verb} the issue '{issue.title}' of the project {issue.project}."
    return _do(site, intent, change, _of_issue(issue), f"{verb} issue")


def tracker_label(site: Site, rng: random.Random) -> Task:
    """Add a label to an issue."""
    issue = rng.choice(site.tracker.issues)
    label = rng.choice([label for label in words()["label"] if label not in issue.labels])
    intent = f"Add the label '{label}' to the {_state(issue)} issue '{issue.title}' of the project {issue.project}."
    change = lambda now: now.tracker.issues[issue.number - 1].add_label(label)  # noqa: E731
    return _do(site, intent, change, _of_issue(issue), "Add label", ("Label", label))


def tracker_assign(site: Site, rng: random.Random) -> Task:
    """Assign an issue."""
    issue = rng.choice(site.tracker.issues)
    name = rng.choice([name for name in words()["people"] if name != issue.assignee])
    change = _setting(lambda now: now.tracker.issues[issue.number - 1], "assignee", name)
    intent = f"Assign the {_state(issue)} issue '{issue.title}' of the project {issue.project} to '{name}'."
    return _do(site, intent, change, _of_issue(issue), "Assign", ("Assignee", name))


def tracker_create(site: Site, rng: random.Random) -> Task:
    """Create an issue."""
    project, title, text = (rng.choice(words()[what]) for what in ("project", "new-title", "new-text"))
    intent = f"Create an issue in the project {project} with the title '{title}' and the description '{text}'"
    change = lambda now: now.tracker.create(project, title, text)  # noqa: E731
    place = ((TRACKER, project, "New issue"), f"/tracker/{project}/new")
    return _do(site, intent, change, place, "Create issue", ("Title", title), ("Description", text))


def cms_drafts(site: Site, rng: random.Random) -> Task:
    """Count drafts."""
    count = sum(not entry.published for entry in site.cms.entries)
    return _read(site, "How many pages in the content management are drafts?", count, ((CMS,), "/cms"))


def cms_author(site: Site, rng: random.Random) -> Task:
    """Find out who edited a page last."""
    entry = rng.choice(site.cms.entries)
    intent = f"Who edited the page '{entry.title}' of the content management last?"
    return _read(site, intent, entry.author, _of_entry(entry))


def cms_publish(site: Site, rng: random.Random) -> Task:
    """Publish or withdraw a page."""
    place, entry = _any_entry(site, rng)
    verb = "Unpublish" if entry.published else "Publish"
    change = _setting(lambda now: now.cms.entries[place], "published", not entry.published)
    return _do(site, f"{verb} the page '{entry.title}' in the content management.", change, _of_entry(entry), verb)


def cms_rename(site: Site, rng: random.Random) -> Task:
    """Change the title of a page and leave its content."""
    (place, entry), title = _any_entry(site, rng), rng.choice(words()["new-title"])
    intent = f"Change the title of the page '{entry.title}' in the content management to '{title}', and nothing else."
    change = _setting(lambda now: now.cms.entries[place], "title", title)
    return _do(site, intent, change, _of_entry(entry), "Save changes", ("Title", title))


def cms_write(site: Site, rng: random.Random) -> Task:
    """Replace the content of a page and leave its title."""
    (place, entry), text = _any_entry(site, rng), rng.choice(words()["new-text"])
    intent = f"Replace the content of the page '{entry.title}' in the content management by '{text}'"
    change = _setting(lambda now: now.cms.entries[place], "body", text)
    return _do(site, intent, change, _of_entry(entry), "Save changes", ("Content", text))


def cms_create(site: Site, rng: random.Random) -> Task:
    """Write a new page."""
    title, text = rng.choice(words()["new-title"]), rng.choice(words()["new-text"])
    what = f"with the title '{title}' and the content '{text}'"
    intent, place = f"Write a new page in the content management, as a draft, {what}", ((CMS, "New page"), "/cms/new")
    change = lambda now: now.cms.create(title, text)  # noqa: E731
    return _do(site, intent, change, place, "Save draft", ("Title", title), ("Content", text))


def cms_delete(site: Site, rng: random.Random) -> Task:
    """Delete a page."""
    place, entry = _any_entry(site, rng)
    intent = f"Delete the page '{entry.title}' in the content management."
    return _do(site, intent, lambda now: now.cms.entries.pop(place), _of_entry(entry), "Delete page")


def cms_site_title(site: Site, rng: random.Random) -> Task:
    """Change a setting."""
    title = rng.choice([title for title in words()["site-title"] if title != site.cms.site_title])
    intent = f"Set the site title in the settings of the content management to '{title}'."
    change, place = _setting(lambda now: now.cms, "site_title", title), ((CMS, "Settings"), "/cms/settings")
    return _do(site, intent, change, place, "Save settings", ("Site title", title))


def _any_entry(site: Site, rng: random.Random) -> tuple[int, Entry]:
    place = rng.randrange(len(site.cms.entries))
    return place, site.cms.entries[place]


def _state(issue: Issue) -> str:
    return "open" if issue.is_open else "closed"


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
