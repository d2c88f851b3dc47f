#!/usr/bin/env python3
"""Writes train.tsv, validation.tsv and test.tsv from the hand-written parts in parts/.

A line is a customer's message with ONE open matter, the deciding clause, which alone gives the label. Longer lines
surround it with matters that are over, denied or already answered. Those are told with the vocabulary of other
intents, often with their very clauses, so that only order and who-belongs-to-what tell the open matter apart.

Same bytes on every run: one seeded random.Random per split. Standard library only (Python 3.11 or later).
"""
import argparse
import hashlib
import pathlib
import random
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
LANGUAGES = ("en", "zh")
# Lines of each length class in each split; the two languages share them equally.
COUNTS = {
    "train": {"short": 2400, "medium": 5200, "long": 5600},
    "validation": {"short": 270, "medium": 260, "long": 270},
    "test": {"short": 400, "medium": 400, "long": 400},
}
# Length classes in words (English) or characters (Chinese): a long line has over 40 words or 60 characters.
LIMITS = {
    "en": {"short": (3, 15), "medium": (16, 40), "long": (41, 66)},
    "zh": {"short": (5, 22), "medium": (23, 60), "long": (61, 105)},
}
MAX_SIMILARITY = 0.6  # Jaccard of character 4-grams between lines of different splits
NGRAM = 4
QUOTED = 0.3  # part of the closed matters that use the very clause of another intent
TEST_SHARE = 5  # one (wording, product) pair in five is kept from training


class Parts:
    """The hand-written parts of one language."""

    def __init__(self, language):
        self.language = language
        self.intents = self.read("intents")
        self.frames = self.read("frames")
        self.settings = self.read("settings")
        self.kinds = [k for k in ("ask", "direct", "wish") if k in self.frames["open"]]
        # Wordings by intent: (id, kind, text), the ones for everybody and the ones for test lines only.
        self.shared, self.unseen = {}, {}
        for intent, table in self.intents.items():
            self.shared[intent] = self.wordings(intent, table, "")
            self.unseen[intent] = self.wordings(intent, table, "test_")

    def read(self, name):
        with open(HERE / "parts" / f"{name}_{self.language}.toml", "rb") as file:
            return tomllib.load(file)

    def wordings(self, intent, table, prefix):
        found = []
        for kind in self.kinds:
            for i, text in enumerate(table.get(prefix + kind, [])):
                found.append((f"{intent}.{self.language}.{prefix}{kind}.{i}", kind, text))
        return found

    def products(self):
        items = self.settings["products"]
        return [(p, "") if isinstance(p, str) else tuple(p) for p in items]


def held_out(wording_id, product):
    """Whether this pair of deciding clause and product belongs to the test lines. A pure function of the two."""
    digest = hashlib.sha256(f"{wording_id}|{product}".encode()).digest()
    return digest[0] % TEST_SHARE == 0


# The sentence that the project was born from: its clause and product are always the test's.
INCIDENT = ("arrival_time.zh.ask.0", "充电宝")


def pair_is_for_test(wording_id, product):
    return (wording_id, product) == INCIDENT or held_out(wording_id, product)


class Line:
    """Draws the pieces of one message."""

    def __init__(self, parts, rng, split):
        self.parts, self.rng, self.split = parts, rng, split
        self.s = parts.settings
        self.products = rng.sample(parts.products(), 3)
        self.colours = rng.sample(self.s["colours"], 3)

    def moment(self):
        return self.rng.choice(self.s["times"])

    def name(self, i, known):
        """How product i is called inside a clause."""
        pattern = self.rng.choice(self.s["names_known" if known else "names_alone"])
        noun, measure = self.products[i]
        return pattern.format(c=self.colours[i], n=noun, m=measure, t=self.moment())

    def introduce(self, i):
        noun, measure = self.products[i]
        if self.parts.language == "zh":
            return f"一{measure}{self.colours[i]}的{noun}"
        return f"{'an' if self.colours[i][0] in 'aeiou' else 'a'} {self.colours[i]} {noun}"

    def introduction(self):
        pattern = self.rng.choice(self.s["intros"])
        return pattern.format(a=self.introduce(0), b=self.introduce(1), d=self.introduce(2), t=self.moment())

    def deciding(self, intent, wording, known):
        wording_id, kind, text = wording
        frame = self.rng.choice(self.parts.frames["open"][kind])
        return frame.format(q=text.format(p=self.name(0, known)))

    def over(self, intent, known, quoted):
        """A matter that is over: a plain statement, or a clause of that intent in a frame that closes it."""
        product = self.rng.choice((0, 1, 1, 2, 2)) if not known else self.rng.choice((0, 1, 1, 1))
        if not quoted:
            text = self.rng.choice(self.parts.intents[intent]["done"])
            text = text.format(p=self.name(product, known), t=self.moment())
            return self.rng.choice(self.parts.frames["closed"]["done"]).format(q=text)
        noun = self.products[product][0]
        choices = [w for w in self.parts.shared[intent] if self.split == "test" or not pair_is_for_test(w[0], noun)]
        wording_id, kind, text = self.rng.choice(choices)
        frame = self.rng.choice(self.parts.frames["closed"][kind])
        return frame.format(q=text.format(p=self.name(product, known)), t=self.moment())

    def filler(self):
        pattern = self.rng.choice(self.s["fillers"])
        text = pattern.format(city=self.rng.choice(self.s["cities"]), k=self.rng.randrange(60) * 37 + 1009)
        return text + self.stop()

    def stop(self):
        return "。" if self.parts.language == "zh" else "."


def pick_wording(parts, rng, intent, split, noun, unseen):
    if unseen:
        return rng.choice(parts.unseen[intent])
    for_test = split == "test"
    choices = [w for w in parts.shared[intent] if pair_is_for_test(w[0], noun) == for_test]
    return rng.choice(choices) if choices else None


def join(parts, rng, sentences):
    """One text from sentences: in English with capitals at their starts, or all small as many people write."""
    if parts.language == "zh":
        return "".join(sentences)
    if rng.random() < 0.6:
        sentences = [s[0].upper() + s[1:] for s in sentences]
    return " ".join(sentences)


def measure(language, text):
    return len(text) if language == "zh" else len(text.split())


def compose(parts, rng, split, intent, length, unseen):
    """One line as a dict, or None when the draw does not fit the length class."""
    line = Line(parts, rng, split)
    noun = line.products[0][0]
    wording = pick_wording(parts, rng, intent, split, noun, unseen)
    if wording is None:
        return None
    known = length == "long" or (length == "medium" and rng.random() < 0.4)
    closed = {"short": 0, "medium": 0 if known and rng.random() < 0.3 else 1, "long": rng.choice((2, 2, 3))}[length]
    others = rng.sample([i for i in parts.intents if i != intent], closed)
    body = [line.over(other, known, rng.random() < QUOTED) for other in others]
    if length == "long" and rng.random() < 0.5 or length == "medium" and rng.random() < 0.3:
        body.append(line.filler())
    rng.shuffle(body)
    body.insert(rng.randrange(len(body) + 1), line.deciding(intent, wording, known))
    if known:
        body.insert(0, line.introduction() + line.stop())
    if rng.random() < 0.25:
        greeting = rng.choice(parts.settings["greetings"])
        body[0] = greeting + ("\uff0c" if parts.language == "zh" else ", ") + body[0]
    if rng.random() < 0.2:
        body.append(rng.choice(parts.settings["thanks"]) + line.stop())
    text = join(parts, rng, body)
    low, high = LIMITS[parts.language][length]
    if not low <= measure(parts.language, text) <= high:
        return None
    return {
        "text": text, "label": intent, "language": parts.language, "length": length, "clause": wording[0],
        "setting": f"{noun}|{line.colours[0]}", "grams": grams(text),
    }


def grams(text):
    text = "".join(c for c in text.lower() if c.isalnum() or c == " ")
    return {text[i:i + NGRAM] for i in range(max(1, len(text) - NGRAM + 1))}


class Index:
    """Finds lines that share too many character n-grams with a candidate."""

    def __init__(self):
        self.postings, self.sizes = {}, []

    def add(self, line):
        for gram in line["grams"]:
            self.postings.setdefault(gram, []).append(len(self.sizes))
        self.sizes.append(len(line["grams"]))

    def similarity(self, line):
        shared = {}
        for gram in line["grams"]:
            for i in self.postings.get(gram, ()):
                shared[i] = shared.get(i, 0) + 1
        n = len(line["grams"])
        return max((k / (n + self.sizes[i] - k) for i, k in shared.items()), default=0.0)


def vocabulary(language, text):
    """The units that a reader of the language knows: words in English, characters in Chinese; numbers do not count."""
    if language == "zh":
        return {c for c in text if not c.isdigit()}
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return {w for w in words if not w.isdigit()}


def build(split, all_parts, earlier, known_words):
    rng = random.Random(f"qkv support {split}")
    index = Index()
    for line in earlier:
        index.add(line)
    lines, seen, rejected = [], {line["text"] for line in earlier}, 0
    for length, count in COUNTS[split].items():
        for i in range(count):
            parts = all_parts[LANGUAGES[i % 2]]
            intents = list(parts.intents)
            intent = intents[(i // 2) % len(intents)]
            # Four test lines in ten use a wording that no other split has.
            unseen = split == "test" and (i // 2 // len(intents)) % 5 in (1, 3)
            while True:
                line = compose(parts, rng, split, intent, length, unseen)
                if line is None or line["text"] in seen:
                    continue
                if split != "train":
                    if index.similarity(line) >= MAX_SIMILARITY or not vocabulary(parts.language, line["text"]) <= known_words[parts.language]:
                        rejected += 1
                        continue
                break
            seen.add(line["text"])
            lines.append(line)
    rng.shuffle(lines)
    return lines, rejected


def write(path, lines):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("text\tlabel\tlanguage\tlength\tclause\tsetting\n")
        for line in lines:
            file.write("\t".join(line[k] for k in ("text", "label", "language", "length", "clause", "setting")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    out = parser.parse_args().out
    all_parts = {language: Parts(language) for language in LANGUAGES}
    earlier, known_words = [], {}
    for split in COUNTS:
        lines, rejected = build(split, all_parts, earlier, known_words)
        if split == "train":
            for language in LANGUAGES:
                known_words[language] = set().union(*(vocabulary(language, x["text"]) for x in lines if x["language"] == language))
        earlier += lines
        write(out / f"{split}.tsv", lines)
        print(f"{split}: {len(lines)} lines, {rejected} drafts refused")


if __name__ == "__main__":
    main()
