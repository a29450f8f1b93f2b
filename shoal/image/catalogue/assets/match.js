// What a search means: every word must be found, as part of a name or licence, or as the beginning of a version.

const words = (query) => query.toLowerCase().replace(/[=,]+/g, " ").split(/\s+/).filter(Boolean);

// "2.1" begins 2.1 and 2.1.0, not 2.13; Debian's epoch ("1:9.2p1") may be left out.
function beginsVersion(version, word) {
  const plain = version.toLowerCase();
  return [plain, plain.replace(/^\d+:/, "")].some(
    (text) => text.startsWith(word) && !(/\d$/.test(word) && /^\d/.test(text.slice(word.length))),
  );
}

function matchesPackage([kind, name, version, licence], wanted) {
  const texts = [name, kind, licence].map((text) => text.toLowerCase());
  return wanted.every((word) => texts.some((text) => text.includes(word)) || beginsVersion(version, word));
}
