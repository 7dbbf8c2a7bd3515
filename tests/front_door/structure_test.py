"""Answers that have the form which their requests ask for, from a model that writes noise: over HTTP, as docs/structure.md
has it, judged by Python's json and re, and by jsonschema.

usage: structure_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF [SCHEMAS]
"""

import datetime
import json
import pathlib
import random
import re
import sys
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import fixture  # noqa: E402
import live  # noqa: E402
import tools  # noqa: E402

try:
    import jsonschema
except ImportError:
    jsonschema = None

SCHEMAS = int(sys.argv.pop()) if sys.argv[-1].isdigit() else 500
NAMES = "id name kind city tags items count ratio note ok left right é".split()
MAX_TOKENS = 400
MANY_TOKENS = 1000  # for answers that MAX_TOKENS cut short
MOST = 2**63 - 1  # of integers that an answer can have
LARGE = 2**64 - 1
CUT = 10  # one answer in so many is asked for again, cut short
DEFINITIONS = {
    "price": {"type": "number", "minimum": 0, "maximum": 99.5},
    "tree": {"type": "object", "properties": {"leaf": {"type": "boolean"}, "next": {"anyOf": [
        {"type": "null"}, {"type": "null"}, {"$ref": "#/$defs/tree"}]}}, "required": ["leaf", "next"],
        "additionalProperties": False},
    "size": {"allOf": [{"$ref": "#/$defs/letter"}]},
    "letter": {"type": "string", "enum": ["S", "M", "L"]},
}


def random_schema(dice, depth):
    """A schema of the kinds that tools write, whose values end soon whatever is drawn."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format", "multipleOf", "types",
             "ref"]
    if depth > 0:
        kinds += ["object", "array", "anyOf"] * 3 + ["map", "tuple", "tagged", "typed"]
    kind = dice.choice(kinds)
    if kind == "string":
        return {"type": "string", "minLength": dice.randint(0, 2), "maxLength": dice.randint(2, 8)}
    if kind == "integer":
        low = dice.randint(-200, 200)
        return {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 5000)}
    if kind == "number":
        return {"type": "number", "minimum": -2, "maximum": 3.5}
    if kind == "enum":
        return {"enum": dice.sample(["a", "bc", 1, 2.5, None, True, "\u6f22"], dice.randint(1, 4))}
    if kind == "const" and dice.random() < 0.2:
        return {"const": dice.choice([LARGE, [{"a": LARGE}]])}
    if kind == "const":
        return {"const": dice.choice(["x", 7, False, [1, 2], MOST, {"a": [-MOST - 1]}])}
    if kind == "pattern":
        return {"type": "string", "pattern": dice.choice(["^[a-z]{2,5}$", "^(yes|no)$", "^[0-9]{3}-[0-9]{2}$"])}
    if kind == "format":
        return {"type": "string", "format": dice.choice(["date", "time", "date-time", "ipv4", "ipv6", "uuid", "email"])}
    if kind == "multipleOf":
        return {"type": "integer", "multipleOf": dice.randint(2, 30), "minimum": 0, "maximum": 1000}
    if kind == "types":
        return {"type": ["boolean", "null", "string"], "maxLength": 4}
    if kind == "ref":
        return {"$ref": "#/$defs/" + dice.choice(list(DEFINITIONS))}
    if kind == "map":
        return {"type": "object", "properties": {"a": random_schema(dice, 0)}, "required": ["a"],
                "additionalProperties": False}
    if kind == "tuple":
        return {"type": "array", "prefixItems": [random_schema(dice, 0), random_schema(dice, 0)], "items": False,
                "minItems": dice.randint(0, 2), "maxItems": 2}
    if kind == "typed":
        return {"type": "object", "anyOf": [{"properties": {name: random_schema(dice, 0)}, "required": [name],
                                             "additionalProperties": False} for name in ("a", "b")]}
    if kind == "tagged":
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": tag}, "of": random_schema(dice, 0)},
                           "required": ["kind", "of"], "additionalProperties": False} for tag in ("a", "b")]}
    if kind == "object":
        names = dice.sample(NAMES, dice.randint(1, 4))
        return {"type": "object", "properties": {name: random_schema(dice, depth - 1) for name in names},
                "required": [name for name in names if dice.random() < 0.7], "additionalProperties": False}
    if kind == "array":
        low = dice.randint(0, 2)
        return {"type": "array", "items": random_schema(dice, depth - 1), "minItems": low,
                "maxItems": low + dice.randint(0, 2)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(dice, depth - 1) for _ in range(dice.randint(1, 3))]}
    return {"type": kind}


def formats():
    """Python's own, for jsonschema takes a time with an offset for none."""
    checker = jsonschema.FormatChecker(["date", "ipv4", "ipv6", "uuid", "email"])
    for name in ("time", "date-time"):
        prefix = "2000-01-01T" if name == "time" else ""
        checker.checks(name, ValueError)(lambda value, prefix=prefix: not isinstance(value, str) or bool(
            datetime.datetime.fromisoformat(prefix + value)))
    return checker


def content(choice):
    return choice["message"]["content"]


class StructureTest(fixture.ClusterTest):
    def answer_to(self, **members):
        """The only choice of the answer, and its usage."""
        body = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": MAX_TOKENS, **members}
        request = urllib.request.Request(self.cluster.http + "/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=live.PATIENCE) as reply:
                answer = json.loads(reply.read())
        except urllib.error.HTTPError as error:
            self.fail(f"{error.code}: {error.read().decode()}")
        return answer["choices"][0], answer["usage"]

    def chat(self, **members):
        return self.answer_to(**members)[0]

    def refusal(self, **members):
        body = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 4, **members}
        request = urllib.request.Request(self.cluster.http + "/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with self.assertRaises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=live.PATIENCE)
        with raised.exception as error:
            self.assertEqual(error.code, 400)
            return json.loads(error.read())["error"]["message"]

    def whole_and_begun(self, asked, number):
        """The answer, and now and then what comes of the same request where it may be less long; None else."""
        choice, usage = self.answer_to(**asked)
        if choice["finish_reason"] == "length":
            return self.answer_to(**asked, max_tokens=MANY_TOKENS)[0], choice
        if number % CUT != 0 or usage["completion_tokens"] == 1:
            return choice, None
        most = random.Random(number).randint(1, usage["completion_tokens"] - 1)
        return choice, self.chat(**asked, max_tokens=most)

    def test_what_stops_is_valid_and_what_was_cut_short_begins_it(self):
        dice = random.Random(136)
        stopped = cut = refused = 0
        for number in range(SCHEMAS):
            schema = {"type": "object", "properties": {"value": random_schema(dice, 2)}, "required": ["value"],
                      "additionalProperties": False, "$defs": DEFINITIONS}
            form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}
            temperature = dice.choice((0, 0.8, 1.5))
            with self.subTest(number=number, schema=schema):
                if str(LARGE) in json.dumps(schema):
                    refused += 1
                    self.assertIn(": integers beyond 64 bits", self.refusal(response_format=form))
                    continue
                asked = {"response_format": form, "seed": number, "temperature": temperature}
                choice, begun = self.whole_and_begun(asked, number)
                if begun is not None:
                    cut += 1
                    self.assertEqual(begun["finish_reason"], "length")
                    self.assertTrue(content(choice).startswith(content(begun).rstrip("\ufffd")), (begun, choice))
                if choice["finish_reason"] == "length":
                    continue
                self.assertEqual(choice["finish_reason"], "stop")
                stopped += 1
                jsonschema.validate(json.loads(content(choice)), schema, jsonschema.Draft202012Validator,
                                    format_checker=formats())
        print(f"{stopped} of {SCHEMAS - refused} answers ended, {cut} were cut short, too; {refused} schemas were refused")
        self.assertGreaterEqual(stopped, 0.95 * (SCHEMAS - refused))

    def test_any_object_is_an_object(self):
        ended = 0
        for seed in range(6):
            choice = self.chat(response_format={"type": "json_object"}, seed=seed, max_tokens=300)
            self.assertTrue(choice["message"]["content"].lstrip().startswith("{"), choice)
            if choice["finish_reason"] == "stop":
                ended += 1
                self.assertIsInstance(json.loads(choice["message"]["content"]), dict)
        print(f"{ended} of 6 objects ended")

    def test_texts_match_what_is_asked_for(self):
        expression = "(GET|PUT) /[a-z]{1,6}(/[0-9]{1,3})?"
        for seed in range(6):
            choice = self.chat(structured_outputs={"regex": expression}, seed=seed, temperature=1.2)
            self.assertEqual(choice["finish_reason"], "stop")
            self.assertRegex(choice["message"]["content"], f"^{expression}$")
            texts = ["red", "green", "blue as the sea"]
            choice = self.chat(structured_outputs={"choice": texts}, seed=seed, temperature=1.2)
            self.assertIn(choice["message"]["content"], texts)
            grammar = 'root ::= term ("+" term)?\nterm ::= [0-9] [0-9]? | "(" root ")"'
            choice = self.chat(structured_outputs={"grammar": grammar}, seed=seed, temperature=1)
            if choice["finish_reason"] == "stop":
                self.assertTrue(re.fullmatch(r"[0-9+()]+", choice["message"]["content"]), choice)
                compile(choice["message"]["content"].replace("0", "1"), "sum", "eval")

    def test_what_cannot_be_promised_is_refused_by_its_place(self):
        schema = {"type": "object", "properties": {"a": {"type": "array", "items": {}, "uniqueItems": True}}}
        message = self.refusal(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        self.assertIn("uniqueItems", message)
        self.assertIn("/properties/a", message)
        schema = {"type": "object", "properties": {"a": {"enum": [1, LARGE]}}}
        message = self.refusal(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        self.assertIn("/properties/a/enum/1: integers beyond 64 bits", message)
        self.assertIn("regex", self.refusal(structured_outputs={"regex": "(a"}))


if __name__ == "__main__":
    if jsonschema is None:
        print("did not run here: answers of a given form: jsonschema is not installed (tests/front_door/requirements.txt)")
        sys.exit(tools.SKIPPED)
    fixture.main()
