#!/usr/bin/env python3
"""Renders conversations.py by a folder of templates, with transformers and with our own evaluator, and compares.

usage: check_templates.py --render build/tests/render_template FOLDER [--show]
"""
import argparse
import json
import pathlib
import subprocess

from conversations import BOS, CONVERSATIONS, EOS, question, reference


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--render", required=True)
    parser.add_argument("--show", action="store_true", help="the first difference of each template")
    args = parser.parse_args()
    same_of_all = of_all = 0
    for path in sorted(args.folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        try:
            render = reference(source)
        except Exception as error:
            print(f"{path.name}: transformers cannot parse it: {error}")
            render = lambda conversation, error=error: (None, str(error))
        wanted = [render(c) for c in CONVERSATIONS]
        lines = [json.dumps({"template": source, "bos": BOS, "eos": EOS, **question(c)}) for c in CONVERSATIONS]
        done = subprocess.run([args.render], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
        answers = [json.loads(line) for line in done.stdout.split("\n") if line]
        rendered = [(w, a, i) for i, ((w, _), a) in enumerate(zip(wanted, answers)) if w is not None]
        different = [(w, a, i) for w, a, i in rendered if a.get("text") != w]
        lenient = [i for i, ((w, _), a) in enumerate(zip(wanted, answers)) if w is None and "text" in a]
        same_of_all += len(rendered) - len(different)
        of_all += len(rendered)
        print(f"{path.name}: {len(rendered) - len(different)} of {len(rendered)} agree; "
              f"{len(CONVERSATIONS) - len(rendered)} refused by transformers, {len(lenient)} of these rendered here")
        if args.show and different:
            w, a, i = different[0]
            if "error" in a:
                print(f"  conversation {i}: {a['error']}")
            else:
                at = next((k for k, (x, y) in enumerate(zip(w, a["text"])) if x != y), min(len(w), len(a["text"])))
                print(f"  conversation {i} at {at}: transformers {w[max(0, at - 40):at + 40]!r}\n    here {a['text'][max(0, at - 40):at + 40]!r}")
        if args.show:
            for i in lenient[:2]:
                print(f"  only here, conversation {i}: {wanted[i][1][:160]}")
    print(f"all: {same_of_all} of {of_all} agree")


if __name__ == "__main__":
    main()
