"""specdec inside SGLang: registration of our drafters and rules as a speculative algorithm of the server."""
