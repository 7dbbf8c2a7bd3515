// A chat with the gateway that served this page. It calls that gateway and nobody else, and keeps nothing when it is closed.
"use strict";

const byId = (id) => document.getElementById(id);
let turns = []; // {role, content}, what the next request sends
let running = null; // the AbortController of the answer that comes

function headers() {
  const key = byId("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

function showError(text) {
  byId("error").textContent = text;
  byId("error").hidden = !text;
}

// What an answer that is no success says.
async function reasonOf(reply) {
  const text = await reply.text();
  let reason = text;
  try {
    reason = JSON.parse(text).error.message;
  } catch {
    // a proxy's page, perhaps
  }
  const hint = reply.status === 401 ? " (Write your API key into the field under Options.)" : "";
  return `${reply.status}: ${reason || reply.statusText}${hint}`;
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function addTurn(role, text) {
  const turn = element("li", role);
  turn.append(text);
  byId("turns").append(turn);
  turn.scrollIntoView({ block: "nearest" });
  return turn;
}

function requestBody() {
  const system = byId("system").value.trim();
  const tokens = byId("tokens").valueAsNumber;
  const temperature = byId("temperature").valueAsNumber;
  return JSON.stringify({
    messages: [...(system ? [{ role: "system", content: system }] : []), ...turns],
    stream: true,
    stream_options: { include_usage: true },
    ...(Number.isNaN(tokens) ? {} : { max_tokens: tokens }),
    ...(Number.isNaN(temperature) ? {} : { temperature }),
  });
}

// The data of the server-sent events of `reply`, up to [DONE].
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection ended before the answer did");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue; // comments keep the connection alive
      const data = line.slice("data:".length).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

// Takes in one event; `answer` is what has come so far.
function take(event, answer) {
  if (event.error) throw new Error(event.error.message);
  if (event.usage) answer.usage = event.usage;
  if (event.runahead) answer.facts = event.runahead;
  const choice = event.choices?.[0];
  if (!choice) return;
  if (choice.delta.reasoning_content) answer.thoughtPlace.append(choice.delta.reasoning_content);
  if (choice.delta.content) {
    answer.text += choice.delta.content;
    answer.place.append(choice.delta.content);
  }
  if (choice.finish_reason) answer.ended = choice.finish_reason;
}

async function ask(question) {
  showError("");
  const mine = turns; // a new chat has turns of its own
  mine.push({ role: "user", content: question });
  const asked = addTurn("user", question);
  const turn = addTurn("assistant", "");
  const answer = { text: "", place: element("span"), thoughtPlace: element("span", "thought") };
  turn.append(answer.thoughtPlace, answer.place);
  turn.setAttribute("aria-busy", "true");
  running = new AbortController();
  showRunning(true);
  try {
    const reply = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: requestBody(), signal: running.signal,
    });
    if (!reply.ok) throw new Error(await reasonOf(reply));
    for await (const event of events(reply)) take(event, answer);
    if (answer.ended === "length") turn.append(element("span", "note", "(the longest answer was reached)"));
  } catch (error) {
    if (running.signal.aborted) {
      turn.append(element("span", "note", "(stopped)"));
    } else {
      showError(error.message);
    }
  }
  running = null;
  showRunning(false);
  turn.removeAttribute("aria-busy");
  if (mine !== turns) return;
  if (answer.text) {
    mine.push({ role: "assistant", content: answer.text });
  } else if (!answer.ended) {
    // As if it had not been asked: it may be changed, and sent again.
    mine.pop();
    asked.remove();
    turn.remove();
    if (!byId("question").value) byId("question").value = question;
  }
  showFacts(answer);
}

function showRunning(runs) {
  byId("send").disabled = runs;
  byId("stop").disabled = !runs;
}

const milliseconds = (seconds) => `${(seconds * 1000).toFixed(1)} ms`;

function row(...cells) {
  const made = element("tr");
  made.append(...cells);
  return made;
}

// Lines of a name, a bar of `share` (0 to 1) and a text.
function barRow(name, share, text) {
  const bar = element("div", "bar");
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  const place = element("td");
  place.append(bar);
  return row(element("th", "", name), place, element("td", "number", text));
}

function showFacts({ facts, usage }) {
  byId("facts").hidden = !facts;
  if (!facts) return;
  const said = [`first token after ${milliseconds(facts.ttft_s)}`];
  if (facts.tpot_s > 0) said.push(`then ${(1 / facts.tpot_s).toFixed(1)} tokens a second`);
  if (usage) said.push(`${usage.prompt_tokens} tokens of prompt, ${usage.completion_tokens} of answer`);
  said.push(`request ${facts.request_id}`);
  if (facts.failovers) said.push(`begun anew ${facts.failovers} times`);
  byId("summary").textContent = said.join("; ");
  byId("stages").replaceChildren(...Object.entries(facts.stages).map(
    ([name, seconds]) => barRow(name, seconds / facts.ttft_s, milliseconds(seconds))));
  const plan = facts.plan;
  const all = plan.parts.reduce((sum, part) => sum + part, plan.known_tokens);
  byId("plan").replaceChildren(
    row(element("th", "", "schedule"), element("td", "", plan.schedule), element("td")),
    ...(plan.known_tokens ? [barRow("known before", plan.known_tokens / all, `${plan.known_tokens} tokens`)] : []),
    ...plan.workers.map((name, i) => barRow(name, plan.parts[i] / all, `${plan.parts[i]} tokens`)),
    row(element("th", "", "decode"), element("td", "", plan.decode_worker || "none was needed"), element("td")));
}

async function showModel() {
  try {
    const reply = await fetch("v1/models", { headers: headers() });
    if (!reply.ok) throw new Error(await reasonOf(reply));
    const [model] = (await reply.json()).data;
    byId("model").textContent = `${model.id}, ${model.max_model_len} tokens of context`;
  } catch (error) {
    byId("model").textContent = `no model: ${error.message}`;
    setTimeout(showModel, 2000);  // the router may be on its way
  }
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = byId("question").value.trim();
  if (!question || running) return;
  byId("question").value = "";
  ask(question);
});
// A field that is closed could not show what is wrong with it.
byId("ask").addEventListener("invalid", () => { byId("options").open = true; }, true);
byId("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", () => {
  running?.abort();
  turns = [];
  byId("turns").replaceChildren();
  byId("facts").hidden = true;
  showError("");
  byId("question").focus();
});
byId("key").addEventListener("change", showModel);
showModel();
