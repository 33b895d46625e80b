// Numbers as people read them.

export const number = (value) => value.toLocaleString("en");

export const counted = (count, word) => number(count) + " " + word + (count === 1 ? "" : "s");

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.01) return (seconds * 1000).toFixed(1) + " ms";
  if (seconds < 1) return Math.round(seconds * 1000) + " ms";
  if (seconds < 100) return seconds.toFixed(1) + " s";
  return Math.floor(seconds / 60) + " min " + Math.floor(seconds % 60) + " s";
}

export function percent(logprob) {
  const part = Math.exp(logprob) * 100;
  return part >= 99.95 ? "100 %" : part < 0.1 ? "<0.1 %" : part.toFixed(1) + " %";
}
