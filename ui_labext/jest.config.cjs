module.exports = {
  preset: 'ts-jest',
  testEnvironment: 'jsdom',
  setupFiles: ['<rootDir>/test/support/browser.ts'],
  testMatch: ['<rootDir>/test/**/*.spec.ts?(x)'],
  transform: { '\\.tsx?$': ['ts-jest', { tsconfig: 'tsconfig.test.json' }] }
};
