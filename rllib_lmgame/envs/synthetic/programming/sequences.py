"""Problems about lists and grids of numbers."""

from __future__ import annotations

from rllib_lmgame.envs.synthetic.programming.families import family, grid, intervals, ints, whole


@family("Return the sum of the numbers greater than {LIMIT}.", numbers=ints(), LIMIT=(-5, 0, 5, 10, 20))
def sum_above(numbers: list[int], *, LIMIT: int) -> int:
    return sum(number for number in numbers if number > LIMIT)


@family(
    "Return how many numbers leave the remainder {R} when divided by {K} (remainders are never negative).",
    numbers=ints(),
    K=(3, 4, 5),
    R=(0, 1, 2),
)
def count_remainder(numbers: list[int], *, K: int, R: int) -> int:
    return sum(1 for number in numbers if number % K == R)


@family(
    "Return the list turned to the right by {K} places: what falls off the end comes in at the front.",
    numbers=ints(),
    K=(1, 2, 3, 5),
)
def turn_right(numbers: list[int], *, K: int) -> list[int]:
    if not numbers:
        return []
    shift = K % len(numbers)
    return numbers[len(numbers) - shift :] + numbers[: len(numbers) - shift]


@family("Split the list into pieces of {K} numbers; the last one may be shorter.", numbers=ints(), K=(2, 3, 4))
def pieces(numbers: list[int], *, K: int) -> list[list[int]]:
    return [numbers[i : i + K] for i in range(0, len(numbers), K)]


@family(
    "Return the sums of all {K} neighbouring numbers, from left to right; the empty list if there are fewer.",
    numbers=ints(),
    K=(2, 3, 4),
)
def window_sums(numbers: list[int], *, K: int) -> list[int]:
    return [sum(numbers[i : i + K]) for i in range(len(numbers) - K + 1)]


@family(
    "Return the {K} largest numbers in decreasing order, or all of them if there are fewer.",
    numbers=ints(),
    K=(1, 2, 3, 4),
)
def largest(numbers: list[int], *, K: int) -> list[int]:
    return sorted(numbers, reverse=True)[:K]


@family(
    "Keep the first {K} occurrences of each number and drop the later ones; the order stays.",
    numbers=ints(0, 6),
    K=(1, 2, 3),
)
def keep_first(numbers: list[int], *, K: int) -> list[int]:
    seen: dict[int, int] = {}
    kept = []
    for number in numbers:
        seen[number] = seen.get(number, 0) + 1
        if seen[number] <= K:
            kept.append(number)
    return kept


@family(
    "Return the numbers that occur at least {K} times, each once, in increasing order.", numbers=ints(0, 5), K=(1, 2, 3)
)
def frequent(numbers: list[int], *, K: int) -> list[int]:
    return sorted({number for number in numbers if numbers.count(number) >= K})


@family(
    "Return all pairs of places [i, j] with i < j whose numbers add up to {TOTAL}, in increasing order.",
    numbers=ints(-5, 15),
    TOTAL=(5, 8, 10, 12),
)
def pairs_with_sum(numbers: list[int], *, TOTAL: int) -> list[list[int]]:
    size = len(numbers)
    return [[i, j] for i in range(size) for j in range(i + 1, size) if numbers[i] + numbers[j] == TOTAL]


@family(
    "Return the largest sum of neighbouring numbers (at least {K} of them). There are at least {K} numbers.",
    numbers=ints(-20, 20, 3, 10),
    K=(1, 2, 3),
)
def best_run(numbers: list[int], *, K: int) -> int:
    size = len(numbers)
    return max(sum(numbers[i:j]) for i in range(size) for j in range(i + K, size + 1))


@family(
    "Return the length of the longest run of neighbours in which each number exceeds the one before by at least "
    "{GAP}; 0 for no numbers.",
    numbers=ints(0, 30),
    GAP=(1, 2, 3),
)
def longest_rise(numbers: list[int], *, GAP: int) -> int:
    best = length = 0
    for i, number in enumerate(numbers):
        length = length + 1 if i and number - numbers[i - 1] >= GAP else 1
        best = max(best, length)
    return best


@family(
    "Return the length of the longest subsequence (numbers may be left out) in which each number is at least "
    "{GAP} greater than the one before.",
    numbers=ints(0, 30),
    GAP=(1, 2, 4),
)
def longest_subsequence(numbers: list[int], *, GAP: int) -> int:
    lengths: list[int] = []
    for i, number in enumerate(numbers):
        lengths.append(1 + max((lengths[j] for j in range(i) if number - numbers[j] >= GAP), default=0))
    return max(lengths, default=0)


@family("Return the running totals of the list, each one modulo {M}.", numbers=ints(0, 50), M=(7, 10, 12))
def running_totals(numbers: list[int], *, M: int) -> list[int]:
    totals = []
    total = 0
    for number in numbers:
        total = (total + number) % M
        totals.append(total)
    return totals


@family(
    "Replace every number by the difference to the one {K} places before it; the first {K} numbers are dropped.",
    numbers=ints(),
    K=(1, 2, 3),
)
def differences(numbers: list[int], *, K: int) -> list[int]:
    return [numbers[i] - numbers[i - K] for i in range(K, len(numbers))]


@family("Move all numbers equal to {X} to the end; the order of the others stays.", numbers=ints(0, 4), X=(0, 1, 2, 3))
def move_to_end(numbers: list[int], *, X: int) -> list[int]:
    others = [number for number in numbers if number != X]
    return others + [X] * (len(numbers) - len(others))


@family(
    "Merge two lists that are each in increasing order into one in increasing order, then leave out numbers "
    "above {LIMIT}.",
    one=lambda rng: sorted(ints()(rng)),
    two=lambda rng: sorted(ints()(rng)),
    LIMIT=(10, 20, 30),
)
def merge_sorted(one: list[int], two: list[int], *, LIMIT: int) -> list[int]:
    return [number for number in sorted(one + two) if number <= LIMIT]


@family(
    "Join intervals [start, end] that overlap or lie at most {GAP} apart; return the joined ones in increasing order.",
    intervals=intervals(),
    GAP=(0, 1, 2),
)
def join_intervals(intervals: list[list[int]], *, GAP: int) -> list[list[int]]:
    joined: list[list[int]] = []
    for start, end in sorted(intervals):
        if joined and start - joined[-1][1] <= GAP:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return joined


@family(
    "Return the largest number of intervals [start, end] (ends included) that contain one same whole number, "
    "plus {EXTRA}.",
    intervals=intervals(),
    EXTRA=(0, 1, 5),
)
def busiest(intervals: list[list[int]], *, EXTRA: int) -> int:
    return EXTRA + max((sum(1 for start, end in intervals if start <= point <= end) for point in range(21)), default=0)


@family("Turn the grid by {TURNS} quarter turns clockwise.", rows=grid(), TURNS=(1, 2, 3))
def turn_grid(rows: list[list[int]], *, TURNS: int) -> list[list[int]]:
    for _ in range(TURNS):
        rows = [[row[j] for row in rows[::-1]] for j in range(len(rows[0]))]
    return rows


@family(
    "Return the sum of the numbers of the grid in row i and column j for which i + j is a multiple of {K}; both "
    "count from 0.",
    rows=grid(),
    K=(2, 3, 4),
)
def diagonal_sum(rows: list[list[int]], *, K: int) -> int:
    return sum(number for i, row in enumerate(rows) for j, number in enumerate(row) if (i + j) % K == 0)


@family(
    "Read the grid along its rows, every second row from right to left, and return every {K}th number, the first "
    "one first.",
    rows=grid(),
    K=(1, 2, 3),
)
def snake(rows: list[list[int]], *, K: int) -> list[int]:
    path = [number for i, row in enumerate(rows) for number in (row if i % 2 == 0 else row[::-1])]
    return path[::K]


@family(
    "Cells with a number of at least {LIMIT} are land. Return the number of islands: land connected up, down, "
    "left and right.",
    rows=grid(0, 9, 6),
    LIMIT=(4, 5, 6),
)
def islands(rows: list[list[int]], *, LIMIT: int) -> int:
    land = {(i, j) for i, row in enumerate(rows) for j, number in enumerate(row) if number >= LIMIT}
    count = 0
    while land:
        count += 1
        stack = [land.pop()]
        while stack:
            i, j = stack.pop()
            for near in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                if near in land:
                    land.remove(near)
                    stack.append(near)
    return count


@family(
    "Walk from the top left to the bottom right cell, right or down. Return the smallest sum of the cells on the "
    "way, plus {TOLL} for every step.",
    rows=grid(),
    TOLL=(0, 1, 3),
)
def cheapest_path(rows: list[list[int]], *, TOLL: int) -> int:
    costs: dict[tuple[int, int], int] = {}
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            before = [costs[place] + TOLL for place in ((i - 1, j), (i, j - 1)) if place in costs]
            costs[i, j] = number + min(before, default=0)
    return costs[len(rows) - 1, len(rows[0]) - 1]


@family(
    "n people stand in a circle, numbered from 1; every {K}th one leaves, counting on from the one who left, "
    "until one is left. Return its number.",
    n=whole(1, 60),
    K=(2, 3, 4, 5),
)
def last_in_circle(n: int, *, K: int) -> int:
    place = 0
    for size in range(2, n + 1):
        place = (place + K) % size
    return place + 1


@family(
    "Return the product of all numbers other than zero, modulo {M}; 1 modulo {M} if there are none.",
    numbers=ints(0, 15),
    M=(11, 100, 1009),
)
def product_modulo(numbers: list[int], *, M: int) -> int:
    product = 1
    for number in numbers:
        if number:
            product = product * number % M
    return product % M
