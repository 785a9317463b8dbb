/* Preloaded by a test: a program that seems to run another ggml. */
const char * ggml_version(void);
const char * ggml_version(void) { return "9.9.9"; }
