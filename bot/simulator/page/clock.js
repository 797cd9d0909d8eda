// The server's clock and how times read to a person: everything in the reader's own zone and language.

let offset = 0;

/** Take the server's time (epoch seconds) as the truth about "now". */
export function setNow(epochSeconds) { offset = epochSeconds * 1000 - Date.now(); }

export function now() { return Date.now() + offset; }

const format = (options) => new Intl.DateTimeFormat(undefined, options);
const TIME = format({ hour: "2-digit", minute: "2-digit" });
const TIME_SECS = format({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const FULL = format({ dateStyle: "full", timeStyle: "medium" });
const LONG = format({ weekday: "long", year: "numeric", month: "long", day: "numeric" });
const DATE = format({ year: "numeric", month: "long", day: "numeric" });
const SHORT = format({ year: "numeric", month: "short", day: "numeric" });
const DAY_MONTH = format({ weekday: "long", month: "long", day: "numeric" });
const AGO = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });

export const dateOf = (ts) => new Date(Number.parseFloat(ts) * 1000);
export const clockTime = (date) => TIME.format(date);
/** Without AM and PM: the gutter beside a message has room for the digits only. */
export const shortTime = (date) => TIME.formatToParts(date).filter((part) => part.type !== "dayPeriod").map((part) => part.value).join("").trim();
export const fullTime = (date) => FULL.format(date);
export const dayKey = (date) => `${date.getFullYear()}-${date.getMonth()}-${date.getDate()}`;

function daysFromToday(date) {
  const midnight = (value) => new Date(value.getFullYear(), value.getMonth(), value.getDate()).getTime();
  return Math.round((midnight(date) - midnight(new Date(now()))) / 86_400_000);
}

function pretty(date, otherwise) {
  const days = daysFromToday(date);
  return Math.abs(days) <= 1 ? AGO.format(days, "day") : otherwise.format(date);
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** "Today", "Yesterday" or the date, for the line between two days. */
export const dayName = (date) => capital(pretty(date, DAY_MONTH));

/** "3 minutes ago". */
export function ago(date) {
  const seconds = (date.getTime() - now()) / 1000;
  for (const [unit, size] of [["day", 86_400], ["hour", 3_600], ["minute", 60]]) {
    if (Math.abs(seconds) >= size) return AGO.format(Math.trunc(seconds / size), unit);
  }
  return Math.abs(seconds) < 15 ? "just now" : AGO.format(Math.trunc(seconds), "second");
}

/** Slack's date format: text with {date_short} {time} … in braces, filled for the reader. */
export function slackDate(epochSeconds, pattern) {
  const date = new Date(epochSeconds * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const tokens = {
    date_num: () => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`,
    date_slash: () => `${date.getFullYear()}/${two(date.getMonth() + 1)}/${two(date.getDate())}`,
    date: () => DATE.format(date),
    date_short: () => SHORT.format(date),
    date_long: () => LONG.format(date),
    date_pretty: () => pretty(date, DATE),
    date_short_pretty: () => pretty(date, SHORT),
    date_long_pretty: () => pretty(date, LONG),
    day_divider_pretty: () => dayName(date),
    time: () => TIME.format(date),
    time_secs: () => TIME_SECS.format(date),
    ago: () => ago(date),
  };
  return pattern.replace(/\{(\w+)\}/g, (whole, token) => (tokens[token] ? tokens[token]() : whole));
}
