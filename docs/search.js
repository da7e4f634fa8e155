// Queries as people type them: lunr takes a leading "-" as "must not occur", and looks for the words
// of a question ("how do I …") everywhere.
const WORDS_OF_QUESTIONS = new Set(
  "a an and are can did do does for from how i if in is it my of on or should that the to what when where which why will with".split(" "),
);
const QUERY = 2; // the type of a message to the search worker
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...others) {
  if (message?.type === QUERY && typeof message.data === "string") {
    const words = message.data.split(/[\s\-_./]+/).filter(Boolean); // as the index is split
    const kept = words.filter((word) => !WORDS_OF_QUESTIONS.has(word.replace(/[*?]+$/, "").toLowerCase()));
    message = { ...message, data: (kept.length ? kept : words).join(" ") };
  }
  return send.call(this, message, ...others);
};
