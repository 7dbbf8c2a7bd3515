#!/usr/bin/env python3
"""Writes data/templates.json: conversations.py as transformers renders them by templates/*.jinja."""
import json
import pathlib

from conversations import BOS, CONVERSATIONS, EOS, question, reference

HERE = pathlib.Path(__file__).parent


def main():
    rendered = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        render = reference(path.read_text(encoding="utf-8"))
        answers = [render(c) for c in CONVERSATIONS]
        # None: transformers refuses it, which the template raised or which failed in it.
        rendered[path.stem] = [text for text, _ in answers]
        print(path.stem, sum(text is not None for text, _ in answers), {e for _, e in answers if e and "TemplateError" not in e})
    golden = {"bos": BOS, "eos": EOS, "conversations": [question(c) for c in CONVERSATIONS], "rendered": rendered}
    with open(HERE / "data" / "templates.json", "w", encoding="utf-8") as file:
        json.dump(golden, file, ensure_ascii=False, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
