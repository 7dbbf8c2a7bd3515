"""Asks over HTTP with the OpenAI SDK (pip install openai), where `runahead up --http 127.0.0.1:8000` serves."""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
question = [{"role": "user", "content": "Who are you?"}]
answer = client.chat.completions.create(model="", max_tokens=100, messages=question)
print(answer.choices[0].message.content)
