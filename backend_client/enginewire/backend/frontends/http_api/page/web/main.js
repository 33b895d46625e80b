// The page: it connects what is typed, what is shown and what the server tells.

import { Conversation } from "./conversation/conversation.js";
import { byId, make, say } from "./dom.js";
import { showEngines } from "./load/engines.js";
import { counted } from "./figures.js";
import { LoadCharts } from "./load/charts.js";
import { Parameters } from "./conversation/parameters.js";
import { showRequests } from "./requests.js";
import { about, keepKey, watch } from "./server.js";
import { tellFactsIn } from "./conversation/tokens.js";

const charts = new LoadCharts();
const parameters = new Parameters();
const conversation = new Conversation((isBusy) => {
  const [hidden, visible] = isBusy ? [byId("go"), byId("halt")] : [byId("halt"), byId("go")];
  const isLeft = document.activeElement === hidden;
  hidden.hidden = true;
  visible.hidden = false;
  byId("clear").hidden = isBusy;
  // Whoever has pressed a button by key is not sent to the top of the page.
  if (isLeft) visible.focus();
});
let isIntroduced = false;

// --- what is typed ---------------------------------------------------------------------------------------

async function send() {
  if (byId("go").disabled || conversation.running || !parameters.isValid()) return;
  const prompt = byId("prompt").value;
  byId("prompt").value = "";
  const answer = await conversation.ask(prompt, parameters.isChat, parameters.fields);
  // A prompt that got no answer can be mended.
  if (!answer.text && !byId("prompt").value) byId("prompt").value = prompt;
}

conversation.onRegenerate = () => { if (parameters.isValid()) conversation.regenerate(parameters.fields); };
byId("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
byId("halt").addEventListener("click", () => conversation.stop());
byId("clear").addEventListener("click", () => { conversation.clear(); byId("clear").hidden = true; });
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});
tellFactsIn(byId("tokens"));

// --- what the server tells -------------------------------------------------------------------------------

async function introduce() {
  isIntroduced = true;
  const facts = await about();
  // With the next state it is asked again.
  if (!facts) { isIntroduced = false; return; }
  byId("model").replaceChildren(make("b", "", facts.model), " on " + facts.engine);
  byId("model").hidden = false;
  say(byId("version"), facts.version);
  say(byId("block-size"), facts.kv_block_size ? counted(facts.kv_block_size, "token") + " each" : "");
  document.title = facts.model + " · enginewire";
  parameters.meet(facts);
  byId("go").disabled = false;
}

function showState(name, text) {
  say(byId("state"), text || name);
  byId("state").dataset.state = name;
}

function show(state) {
  const ready = state.engines.filter((engine) => engine.state === "ready").length;
  const all = state.engines.length;
  showState(ready ? "ready" : state.engines[0].state, all > 1 ? ready + " of " + all + " engines ready" : "");
  if (!isIntroduced) introduce();
  showEngines(state.engines);
  charts.show(state);
  showRequests(state);
}

say(byId("base"), new URL("v1", document.baseURI).href);
const tryAgain = watch(show, () => {
  showState("offline", "no connection, trying again");
  charts.forget();
}, () => {
  showState("locked", "API key needed");
  byId("key-form").hidden = false;
});
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(byId("key").value.trim());
  byId("key").value = "";
  byId("key-form").hidden = true;
  tryAgain();
});
