// The form: what is asked for beside the prompt, as fields of a request.

import { byId } from "../dom.js";

const ESCAPES = { "\\n": "\n", "\\t": "\t", "\\\\": "\\" };
const NUMBERS = {
  "max-tokens": "max_tokens", temperature: "temperature", "top-p": "top_p", seed: "seed", choices: "n",
};
const SCHEMA_NAME = "answer";

// Stop strings as they were typed: a space at the beginning or the end is a part of them.
export function stopStrings(text) {
  const lines = text.split("\n").filter((line) => line);
  return lines.map((line) => line.replace(/\\[nt\\]/g, (found) => ESCAPES[found]));
}

function schemaFault(text) {
  if (!text.trim()) return "";
  try {
    const schema = JSON.parse(text);
    const isObject = schema !== null && typeof schema === "object" && !Array.isArray(schema);
    return isObject ? "" : "a schema is a JSON object";
  } catch (error) {
    return "not JSON: " + error.message;
  }
}

export class Parameters {
  constructor() {
    byId("schema").addEventListener("input", () => this.isValid(false));
  }

  // What this engine cannot do cannot be asked for.
  meet(about) {
    this.alternatives = about.max_logprobs;
    byId("chat-label").hidden = !about.has_chat_template;
    if (!about.has_chat_template) byId("chat").checked = false;
    const { seed, n: choices, json_schema: schema } = about.can;
    for (const [id, can] of Object.entries({ seed, choices, schema })) {
      byId(id).disabled = !can;
      byId(id).title = can ? "" : "this engine cannot do that";
    }
  }

  get isChat() { return byId("chat").checked; }

  // Says what is wrong, if somebody shall be told.
  isValid(isTold = true) {
    byId("schema").setCustomValidity(schemaFault(byId("schema").value));
    const form = byId("form");
    if (form.checkValidity() || !isTold) return form.checkValidity();
    if (!byId("schema").validity.valid) byId("more-options").open = true;
    form.reportValidity();
    return false;
  }

  get fields() {
    const fields = { stream: true };
    for (const [id, name] of Object.entries(NUMBERS)) {
      if (!byId(id).disabled && byId(id).value !== "") fields[name] = Number(byId(id).value);
    }
    const stop = stopStrings(byId("stop").value), schema = byId("schema").value;
    if (stop.length) fields.stop = stop;
    if (schema.trim() && !byId("schema").disabled) {
      const described = { name: SCHEMA_NAME, schema: JSON.parse(schema) };
      fields.response_format = { type: "json_schema", json_schema: described };
    }
    if (this.alternatives !== null) fields.logprobs = Math.min(4, this.alternatives);
    return fields;
  }
}
